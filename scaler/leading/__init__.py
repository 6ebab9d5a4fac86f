"""Of several scalers over the same models one acts."""
