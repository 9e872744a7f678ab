//! The text of errors.

/// Gives error types the text of `{}` for `{:?}`, which `unwrap` and a `main` that returns the error show.
macro_rules! debug_is_display {
    (<$($parameter:ident $(: $bound:path)?),*> $type:ty) => {
        impl<$($parameter $(: $bound)?),*> ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
    ($type:ty) => {
        $crate::debug_is_display::debug_is_display!(<> $type);
    };
}

pub(crate) use debug_is_display;
