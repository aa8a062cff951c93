//! Decides where the body of a message ends (RFC 9112 6.3): one type and one function, for requests
//! and responses, read or written.

use http::{StatusCode, Version};

use super::Malformed;
use super::head::Framing;

/// Where the body of a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// The message has no body.
    None,
    /// After this many bytes, at least one.
    Exactly(u64),
    /// The body ends after its last chunk.
    Chunked,
    /// At the end of the connection. Responses only.
    UntilClose,
    /// Unknown, because the transfer coding is not supported. The request is refused and its
    /// connection closed.
    Unknown,
}

/// The message whose body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The body is that of a request.
    Request,
    /// The body is that of a response.
    Response {
        /// The status of the response.
        status: StatusCode,
        /// Whether it is the response to a HEAD request, and so has no body.
        to_head: bool,
    },
}

impl BodyLength {
    /// Decides where the body after a head ends.
    ///
    /// ```
    /// use http::{StatusCode, Version};
    /// use tollgate_http1::{BodyLength, Message, head::Framing};
    ///
    /// let ok = Message::Response { status: StatusCode::OK, to_head: false };
    /// let silent = Framing::default();
    /// // Without a length and a coding a request has no body; a response ends with its connection.
    /// assert_eq!(BodyLength::of(Message::Request, Version::HTTP_11, silent), Ok(BodyLength::None));
    /// assert_eq!(BodyLength::of(ok, Version::HTTP_11, silent), Ok(BodyLength::UntilClose));
    /// ```
    ///
    /// # Errors
    /// [`Malformed::TransferEncoding`]: a coding in HTTP/1.0, which has none.
    pub fn of(message: Message, version: Version, framing: Framing) -> Result<Self, Malformed> {
        if framing.chunked && version < Version::HTTP_11 {
            return Err(Malformed::TransferEncoding);
        }
        Ok(match (message, framing.length) {
            (message, _) if message.is_head_alone() => Self::None,
            // The coding counts where there is a length too (RFC 9112 6.1).
            _ if framing.chunked => Self::Chunked,
            (_, Some(0)) | (Message::Request, None) => Self::None,
            (_, Some(length)) => Self::Exactly(length),
            (Message::Response { .. }, None) => Self::UntilClose,
        })
    }
}

impl Message {
    /// Whether no body follows, whatever the head says.
    pub fn is_head_alone(self) -> bool {
        match self {
            Self::Request => false,
            Self::Response { status, to_head } => to_head || has_no_body(status),
        }
    }
}

/// Whether a response of this status never has a body. (Interim responses, 1xx but 101, are handled
/// before their final response.)
pub fn has_no_body(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Message = Message::Response {
        status: StatusCode::OK,
        to_head: false,
    };

    fn length(message: Message, chunked: bool, length: Option<u64>) -> BodyLength {
        BodyLength::of(
            message,
            Version::HTTP_11,
            Framing {
                chunked,
                length,
                ..Framing::default()
            },
        )
        .expect("HTTP/1.1")
    }

    #[test]
    fn body_length_of_each_message_is_that_of_rfc_9112() {
        for message in [Message::Request, OK] {
            assert_eq!(length(message, true, None), BodyLength::Chunked);
            assert_eq!(
                length(message, true, Some(3)),
                BodyLength::Chunked,
                "the coding counts"
            );
            assert_eq!(length(message, false, Some(3)), BodyLength::Exactly(3));
            assert_eq!(length(message, false, Some(0)), BodyLength::None);
        }
        assert_eq!(length(Message::Request, false, None), BodyLength::None);
        assert_eq!(length(OK, false, None), BodyLength::UntilClose);
        let to_head = Message::Response {
            status: StatusCode::OK,
            to_head: true,
        };
        let statuses = [
            StatusCode::NO_CONTENT,
            StatusCode::NOT_MODIFIED,
            StatusCode::SWITCHING_PROTOCOLS,
        ];
        let bodiless = statuses.map(|status| Message::Response {
            status,
            to_head: false,
        });
        for message in bodiless.into_iter().chain([to_head]) {
            for (chunked, said) in [(true, None), (false, Some(9)), (false, None)] {
                assert_eq!(
                    length(message, chunked, said),
                    BodyLength::None,
                    "{message:?}"
                );
            }
        }
    }

    #[test]
    fn body_length_of_a_coding_in_http_1_0_is_refused() {
        let framing = Framing {
            chunked: true,
            ..Framing::default()
        };
        for message in [Message::Request, OK] {
            assert_eq!(
                BodyLength::of(message, Version::HTTP_10, framing),
                Err(Malformed::TransferEncoding)
            );
        }
    }
}
