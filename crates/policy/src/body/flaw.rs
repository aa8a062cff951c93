//! Why a request is refused for its body.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFlaw {
    #[error("the body is not valid JSON")]
    Malformed,
    /// A value that is asked for can be read in more than one way: 400.
    #[error("a value in the body can be read in more than one way")]
    Ambiguous,
    /// It is a GraphQL request, and it is not clear which operation it executes: 400.
    #[error(transparent)]
    Operation(#[from] OperationFlaw),
    #[error("the calls of the batch differ")]
    Mixed,
    #[error("the batch has too many calls")]
    TooManyCalls,
    #[error("the charset of the body is not UTF-8")]
    Charset,
    #[error("the body is compressed")]
    Compressed,
}

impl BodyFlaw {
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::Ambiguous | Self::Operation(_) | Self::Mixed => 400,
            Self::TooManyCalls => 413,
            Self::Charset | Self::Compressed => 415,
        }
    }
}

crate::labels! {
    BodyFlaw {
        Self::Malformed => "body_malformed",
        Self::Ambiguous | Self::Operation(_) => "body_ambiguous",
        Self::Mixed => "body_mixed",
        Self::TooManyCalls => "body_calls",
        Self::Charset => "body_charset",
        Self::Compressed => "body_compressed",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.words())]
pub enum OperationFlaw {
    Syntax,
    Absent,
    Several,
    Unknown,
    /// There is no document (a persisted query), and the request says no operation: only the server
    /// knows what is executed.
    Unsaid,
    Beside,
    InTarget,
}

impl OperationFlaw {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Syntax => {
                "`query` is not GraphQL, or has characters that servers read differently."
            }
            Self::Absent => "`query` has no operation.",
            Self::Several => {
                "`query` has several operations, and `operationName` says none of them."
            }
            Self::Unknown => "`query` does not have the operation that `operationName` says.",
            Self::Unsaid => {
                "`query` is missing or empty, and `operationName` does not say the operation."
            }
            Self::Beside => {
                "`query` is not the only document: `extensions`, `id` or another member names one as well."
            }
            Self::InTarget => {
                "`query`, `operationName` and other names of GraphQL documents must not be parameters of the URL here."
            }
        }
    }
}
