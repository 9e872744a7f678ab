//! Layout of one structure in Rust.

/// A member, given by its path from the structure.
pub struct Field {
    pub path: &'static str,
    pub offset: usize,
    pub size: usize,
}

pub struct Structure {
    /// Its name in Rust.
    pub name: &'static str,
    /// Its name in C, with `struct` or `union`.
    pub c: &'static str,
    pub size: usize,
    pub align: usize,
    pub fields: &'static [Field],
}

/// The C name of a path: anonymous members vanish, and keywords of Rust lose their underscore.
pub fn c_name(path: &str) -> String {
    path.split('.')
        .filter(|part| !part.starts_with("__bindgen_anon_"))
        .map(|part| match part {
            "in_" => "in",
            "type_" => "type",
            "priv_" => "priv",
            part => part,
        })
        .collect::<Vec<_>>()
        .join(".")
}

/// The size of the field that a projection from `T` yields.
pub const fn size_of_field<T, F>(_: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! structures {
    ($($kind:tt $name:ident { $($first:ident $(. $rest:ident)*),* })*) => {
        &[$($crate::structure::Structure {
            name: stringify!($name),
            c: concat!(stringify!($kind), " ", stringify!($name)),
            size: size_of::<rdma_core_sys::$name>(),
            align: align_of::<rdma_core_sys::$name>(),
            fields: &[$($crate::structure::Field {
                path: concat!(stringify!($first) $(, ".", stringify!($rest))*),
                offset: core::mem::offset_of!(rdma_core_sys::$name, $first $(. $rest)*),
                size: $crate::structure::size_of_field(|s: *const rdma_core_sys::$name| {
                    // SAFETY: never called: only its type is of interest.
                    unsafe { &raw const (*s).$first $(. $rest)* }
                }),
            }),*],
        }),*]
    };
}
