"""From a sweep to records: what to run, the job that runs it, and where it runs."""
