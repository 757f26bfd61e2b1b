"""Ways in which a model becomes another: here, those that leave its function alone."""
