//! GraphQL requests whose operation is not clear.

/// The reason why it is not clear which operation a GraphQL request executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.words())]
pub enum OperationFlaw {
    /// The document is no GraphQL, or has a character that servers read differently.
    Syntax,
    /// The document has no operation.
    Absent,
    /// The document has several operations, and the request says none of them.
    Several,
    /// The operation that the request says is not in the document.
    Unknown,
    /// There is no document (a persisted query), and the request says no operation: only the server
    /// knows what is executed.
    Unsaid,
    /// The request names another document beside its own.
    Beside,
    /// The target of the request names a document or an operation too.
    InTarget,
}

impl OperationFlaw {
    /// In words, for the client and for `explain`.
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
