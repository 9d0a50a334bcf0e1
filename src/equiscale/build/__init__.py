"""How raw sources become dataset files. Extra `build`; the only user of image libraries."""
