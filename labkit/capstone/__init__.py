"""The capstone: a slow training script and one that is to be faster, run in turns and compared."""
