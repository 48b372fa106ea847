"""Tests of the suites: each check catches the fault that it is there for."""
