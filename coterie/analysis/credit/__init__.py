"""Credit: what each role and turn was credited with, and what replacing its actions changes."""
