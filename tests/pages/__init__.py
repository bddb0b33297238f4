"""Tests of every page that the course makes for people, in a browser."""
