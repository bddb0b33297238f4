"""Tests of plug-ins: each can be taken out together with its tests."""
