# `recorder` patches the library; it is for the processes of a training run, not to be imported for its doctests.
collect_ignore = ["recorder.py"]
