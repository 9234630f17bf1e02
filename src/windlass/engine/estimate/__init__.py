"""Estimates: how long jobs wait, from learned run times and a forecast of each queue."""
