"""Links a fork's libraries, and proves that they serve what they should."""
