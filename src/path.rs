//! The two ways in which a queue can be driven.

use std::fmt;

use crate::debug_is_display::debug_is_display;

/// How doorbell drives a queue. A queue keeps the path that it was created with.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Path, Receiver};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// let direct = Receiver::new(&pd, &CqConfig::new(4096))?;
/// assert_eq!(direct.path(), Path::Direct);
/// let config = CqConfig::new(4096).path("verbs".parse()?);
/// assert_eq!(Receiver::new(&pd, &config)?.path(), Path::Verbs);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// The direct path if it is possible, else verbs.
    #[default]
    Auto,
    /// doorbell writes WQEs and reads CQEs itself. mlx5 devices only.
    Direct,
    /// doorbell calls libibverbs. Any device.
    Verbs,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Verbs => "verbs",
        })
    }
}

impl std::str::FromStr for Path {
    type Err = UnknownPath;

    fn from_str(name: &str) -> Result<Self, UnknownPath> {
        match name {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "verbs" => Ok(Self::Verbs),
            _ => Err(UnknownPath(name.to_owned())),
        }
    }
}

/// A string does not name a path.
///
/// ```
/// use doorbell::Path;
///
/// assert_eq!("direct".parse::<Path>()?, Path::Direct);
/// let unknown = "fast".parse::<Path>().unwrap_err();
/// assert_eq!(unknown.to_string(), "fast is not a path: use auto, direct or verbs");
/// # Ok::<(), doorbell::UnknownPath>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a path: use auto, direct or verbs")]
pub struct UnknownPath(String);

debug_is_display!(UnknownPath);

/// Why the direct path is not possible.
///
/// ```
/// # let _device = doorbell_doc::device();
/// use doorbell::{CqConfig, Error, Path, Receiver};
///
/// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
/// match Receiver::new(&pd, &CqConfig::new(4096).path(Path::Direct)) {
///     Ok(receiver) => assert_eq!(receiver.path(), Path::Direct),
///     // Only `Path::Direct` returns this error; `Path::Auto` takes the verbs path.
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
