//! Error numbers that commands return.

use crate::nic::objects::Errno;

macro_rules! errnos {
    ($($name:ident),*) => {$(
        pub const $name: Errno = Errno(libc::$name);
    )*};
}

errnos!(
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
    EOPNOTSUPP,
    EPERM,
    EPROTONOSUPPORT,
    ETIMEDOUT
);
