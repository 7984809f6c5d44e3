"""What a model is: its sizes, its file formats, its family."""
