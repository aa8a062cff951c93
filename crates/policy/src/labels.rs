//! The words by which the access log and the metrics name a reason.

/// Defines `label`, the word of each variant, and `LABELS`, the list of these words. Variants in a
/// second block take their word from another type, whose own list has it.
#[macro_export]
macro_rules! labels {
    ($type:ty { $($pattern:pat => $word:literal,)* } $(and { $($inner:pat => $label:expr,)* })?) => {
        impl $type {
            /// Every word of [`Self::label`] that is this type's own.
            pub const LABELS: &'static [&'static str] = &[$($word),*];

            pub const fn label(&self) -> &'static str {
                match self {
                    $($pattern => $word,)*
                    $($($inner => $label,)*)?
                }
            }
        }
    };
}
