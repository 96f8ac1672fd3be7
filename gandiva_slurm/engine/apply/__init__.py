"""The plan of a policy made true: the view, the question, the difference, the reasons."""
