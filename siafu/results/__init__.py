"""What reads a run afterwards: its record, its report; and what tells of the machine and of progress."""
