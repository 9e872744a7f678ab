mod explorer;
mod random;
