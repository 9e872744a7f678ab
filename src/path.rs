//! The two ways in which a queue can be driven.

use std::fmt;

use crate::debug_is_display::debug_is_display;

/// How doorbell drives a queue. A queue keeps the path that it was created with.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, DataPath, Receiver};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let direct = Receiver::new(&pd, &CqConfig::new(4096))?;
/// assert_eq!(direct.path(), DataPath::Direct);
/// let config = CqConfig::new(4096).path("verbs".parse()?);
/// assert_eq!(Receiver::new(&pd, &config)?.path(), DataPath::Verbs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DataPath {
    /// The direct path if it is possible, else verbs.
    #[default]
    Auto,
    /// doorbell writes WQEs and reads CQEs itself. mlx5 devices only.
    Direct,
    /// doorbell calls libibverbs. Any device.
    Verbs,
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Verbs => "verbs",
        })
    }
}

impl std::str::FromStr for DataPath {
    type Err = UnknownDataPath;

    fn from_str(name: &str) -> Result<Self, UnknownDataPath> {
        match name {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "verbs" => Ok(Self::Verbs),
            _ => Err(UnknownDataPath(name.to_owned())),
        }
    }
}

/// A string does not name a path.
///
/// ```
/// use doorbell::DataPath;
///
/// assert_eq!("direct".parse::<DataPath>()?, DataPath::Direct);
/// let unknown = "fast".parse::<DataPath>().unwrap_err();
/// assert_eq!(unknown.to_string(), "fast is not a path: use auto, direct or verbs");
/// # Ok::<(), doorbell::UnknownDataPath>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a path: use auto, direct or verbs")]
pub struct UnknownDataPath(String);

debug_is_display!(UnknownDataPath);

/// Why the direct path is not possible.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Error, DataPath, Receiver};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// match Receiver::new(&pd, &CqConfig::new(4096).path(DataPath::Direct)) {
///     Ok(receiver) => assert_eq!(receiver.path(), DataPath::Direct),
///     // Only `DataPath::Direct` returns this error; `DataPath::Auto` takes the verbs path.
///     Err(Error::NotDirect { reason, .. }) => println!("{reason}"),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotDirect {
    /// The device is not an mlx5 device.
    #[error("it is not an mlx5 device")]
    NotMlx5,
    /// libmlx5 could not be loaded, or lacks a function.
    #[error("libmlx5 cannot be used ({0})")]
    Library(String),
    /// This environment variable makes libmlx5 add a signature to each WQE, which changes its layout.
    #[error("{0} adds a signature to each WQE: unset this variable")]
    Signature(&'static str),
    /// `mlx5dv_init_obj` failed with this `errno`.
    #[error("mlx5dv_init_obj failed (errno {0})")]
    InitObj(i32),
    /// The queue has a layout that doorbell does not support.
    #[error("the layout of the queue is unknown ({0})")]
    Layout(String),
}

debug_is_display!(NotDirect);
