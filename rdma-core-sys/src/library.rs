//! Libraries that are found at run time.

use core::ffi::{CStr, c_void};
use std::error::Error;
use std::fmt;

/// Why a library could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic loader did not find the library, or could not load it.
    #[non_exhaustive]
    Library {
        /// The library.
        name: &'static str,
        /// Packages to install.
        packages: &'static str,
        /// The message of the loader.
        reason: String,
    },
    /// The library is there but is older than rdma-core 44.
    #[non_exhaustive]
    Symbol {
        /// The library.
        library: &'static str,
        /// The function that is missing.
        name: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { name, packages, reason } => {
                write!(f, "{name} cannot be loaded ({reason}): install it ({packages})")
            }
            Self::Symbol { library, name } => {
                write!(f, "{library} has no {name}: it is too old, rdma-core 44 or newer is needed")
            }
        }
    }
}

impl Error for LoadError {}

/// A library, by the name that the dynamic loader knows.
pub(crate) struct Library {
    pub(crate) soname: &'static CStr,
    pub(crate) name: &'static str,
    pub(crate) packages: &'static str,
}

/// A loaded library. It is never closed: function pointers and verbs objects may be used until the
/// process ends.
pub(crate) struct Handle {
    handle: *mut c_void,
    name: &'static str,
}

impl Library {
    /// Loads the library, or finds it if it is loaded.
    ///
    /// # Safety
    /// The code that the library runs at load time is sound to run now.
    pub(crate) unsafe fn open(&self) -> Result<Handle, LoadError> {
        // SAFETY: the name ends with a zero, and code of the library is sound to run now.
        let handle = unsafe { libc::dlopen(self.soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Handle { handle, name: self.name });
        }
        // SAFETY: dlerror returns null or a string that lives until this thread's next dl call.
        let reason = unsafe {
            let reason = libc::dlerror();
            match reason.is_null() {
                true => self.soname.to_string_lossy().into_owned(),
                false => CStr::from_ptr(reason).to_string_lossy().into_owned(),
            }
        };
        Err(LoadError::Library { name: self.name, packages: self.packages, reason })
    }
}

impl Handle {
    /// The address of a function; never null.
    ///
    /// # Errors
    /// [`LoadError::Symbol`] when the library does not have it.
    pub(crate) fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, LoadError> {
        // SAFETY: an open handle, and a name that ends with a zero.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            let name = name.to_str().unwrap_or_default();
            return Err(LoadError::Symbol { library: self.name, name });
        }
        Ok(address)
    }
}

/// Declares the table of a library's functions, how it is filled, and `get`, which loads the library.
macro_rules! functions {
    (
        $(#[$table_doc:meta])*
        $table:ident of $library:expr;
        $($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;)*
    ) => {
        $(#[$table_doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?,)*
        }

        impl $table {
            fn find(library: &$crate::library::Handle) -> Result<Self, $crate::library::LoadError> {
                Ok(Self {
                    $($field: {
                        let address = library.symbol($symbol)?;
                        // SAFETY: the library exports a function of this type under this name.
                        unsafe {
                            core::mem::transmute::<
                                *mut core::ffi::c_void,
                                unsafe extern "C" fn($($type),*) $(-> $ret)?,
                            >(address)
                        }
                    },)*
                })
            }

            /// The functions of the library, which is loaded by the first call that succeeds and then
            /// stays.
            ///
            /// # Errors
            /// [`LoadError`](crate::LoadError) when it is absent or too old.
            pub fn get() -> Result<&'static Self, $crate::library::LoadError> {
                static LOADED: std::sync::OnceLock<$table> = std::sync::OnceLock::new();
                if let Some(loaded) = LOADED.get() {
                    return Ok(loaded);
                }
                // SAFETY: the libraries of rdma-core run nothing at load time but the registration of
                // drivers with libibverbs and the reading of their own environment variables.
                let functions = Self::find(&unsafe { $library.open() }?)?;
                Ok(LOADED.get_or_init(|| functions))
            }
        }
    };
}

pub(crate) use functions;
