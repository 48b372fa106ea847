"""Tests of the suites: each check finds the kind of fault that it is for."""
