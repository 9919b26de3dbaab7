from aligner_lib.cli.main import main

if __name__ == "__main__":
    main()
