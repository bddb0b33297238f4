"""The distributed training job that `deploy/` runs: `torchrun ... -m cluster.job`, on top of Lab 5's trainer.

| file          | what it is                                                             |
|---------------|------------------------------------------------------------------------|
| settings.py   | what it is told, by environment variables or flags                     |
| plan.py       | how a step is shared out among the ranks, and its learning rate        |
| training.py   | one rank: data, network, trainer, and where it begins                  |
| output.py     | the model and what is to be known of it                                |
| tracking.py   | metrics to MLflow, if asked for                                        |
| tune.py       | learning rate and batch size by Ray Tune                               |

The trainer is that of a Lab 5 package: the reference where it is there, else the student's own (`--package`).
"""
