"""An exporter: a CSV file in the run folder with a line for each metric of each step."""

import csv

from aligner_lib.run_folder.exporters.base import Service


class CsvFile(Service):
    def open(self, run, noted):
        self.file = (run.path / f"metrics-{run.id}.csv").open("a+", newline="")
        self.file.seek(0)
        return max((int(line[0]) for line in csv.reader(self.file)), default=-1)

    def send(self, step):
        lines = [(step.step, name, value) for name, value in step.metrics.items()]
        csv.writer(self.file).writerows(lines)
        self.file.flush()

    def close(self, status):
        self.file.close()
