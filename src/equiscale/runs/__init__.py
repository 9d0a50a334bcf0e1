"""What a run leaves behind: its key, its record, and the store that keeps records. No torch."""
