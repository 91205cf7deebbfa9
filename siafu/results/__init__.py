"""Read a run's folder and show it: its record, its report, its trace; and show the progress of a run."""
