"""The autograder of Classroom 50, and its results: `gpulabs export classroom50`."""
