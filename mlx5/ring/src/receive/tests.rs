mod explorer;
mod idle;
mod random;
