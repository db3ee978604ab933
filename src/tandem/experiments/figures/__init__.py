"""The figures and tables of the paper's evaluation, one module each."""
