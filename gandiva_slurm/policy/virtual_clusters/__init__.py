"""Virtual clusters and their cells (HiveD, OSDI 2020; ADR 0020, 0035)."""
