//! The form of an option of a device.

/// An option of `soft-mlx5 run`.
#[derive(Debug, Clone, Copy)]
pub struct DeviceOption {
    /// Name of the option.
    pub name: &'static str,
    /// Name of its value, if it has a value.
    pub value: Option<&'static str>,
    /// Help text.
    pub help: &'static str,
}

/// Makes a table of options.
macro_rules! options {
    ($($name:literal $value:expr, $help:literal;)*) => {
        &[$($crate::base::options::DeviceOption { name: $name, value: $value, help: $help }),*]
    };
}
pub(crate) use options;
