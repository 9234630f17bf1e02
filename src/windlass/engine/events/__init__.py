"""Events of jobs: published after each write, heard by all processes, followed for one job or watched for many."""
