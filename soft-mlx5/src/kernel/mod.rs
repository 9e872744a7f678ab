//! What the program takes for the kernel: uverbs commands and the limits of the mlx5 driver.
