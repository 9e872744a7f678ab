//! Error numbers that commands return.

use crate::objects::Errno;

macro_rules! errnos {
    ($($name:ident),*) => {$(
        pub const $name: Errno = Errno(libc::$name);
    )*};
}

errnos!(
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAGAIN,
    EBADF,
    EBUSY,
    EFAULT,
    EINVAL,
    EIO,
    EMFILE,
    ENETUNREACH,
    ENODATA,
    ENODEV,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOSYS,
    ENOTTY,
    EOPNOTSUPP,
    EPERM,
    EPROTONOSUPPORT,
    EREMOTEIO,
    ETIMEDOUT
);
