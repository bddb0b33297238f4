"""Programs on a virtual GPU that passes for a real one: they take the branches that a real GPU takes."""
