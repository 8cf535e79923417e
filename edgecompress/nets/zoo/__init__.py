"""The models that come with a name: one file per family, one `Entry` constant per model."""
