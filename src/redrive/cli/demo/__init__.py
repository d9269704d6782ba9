"""`redrive demo`: an honest tour. Real worker processes, some of them killed, and a sum that adds up."""
