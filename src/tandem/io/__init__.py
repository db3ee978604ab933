"""Files: atomic writes, locks, pytrees as safetensors, tables and YAML."""
