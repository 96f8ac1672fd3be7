"""GPU time of one type for that of another, at second price (EuroSys 2020; ADR 0019)."""
