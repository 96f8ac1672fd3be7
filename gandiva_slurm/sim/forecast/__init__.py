"""What is to come: the live engine run forward in virtual time from a present state, several times."""
