"""Extension: a container that trains on a GPU. The Dockerfile is yours, the programs in it are given."""
