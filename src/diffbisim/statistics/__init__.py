"""Estimates and tests from data."""
