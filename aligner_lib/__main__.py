from aligner_lib.cli import main

if __name__ == "__main__":
    main()
