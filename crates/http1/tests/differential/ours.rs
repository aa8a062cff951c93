//! How this crate reads a stream.

use bytes::BytesMut;
use tollgate_http1::request::Limits;
use tollgate_http1::{Event, Requests, Responses};

/// A message that was read whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The target of a request, the status of a response.
    pub what: String,
    pub body: Vec<u8>,
    /// Where it begins, and the first byte behind it.
    pub from: usize,
    pub to: usize,
}

const LIMITS: Limits = Limits {
    bytes: 16 * 1024,
    fields: 50,
    target: 1024,
};

/// The requests in `bytes` that are accepted.
pub fn requests(bytes: &[u8]) -> Vec<Message> {
    let (mut requests, mut input) = (Requests::new(), BytesMut::from(bytes));
    let mut read = Vec::new();
    let mut message = Message::default();
    loop {
        let from = bytes.len() - input.len();
        let Ok(Some(event)) = requests.read(&mut input, LIMITS) else {
            return read;
        };
        match event {
            Event::Head(head) => {
                message.from = from;
                message.what = head.parts.uri.to_string();
            }
            Event::Data(data) => message.body.extend_from_slice(&data),
            Event::Trailers(_) => {}
            Event::End => {
                message.to = bytes.len() - input.len();
                read.push(std::mem::take(&mut message));
            }
        }
    }
}

/// The responses in `bytes` that are accepted, whose requests `heads` tells of; also behind one after which a client would
/// close. The connection ends behind `bytes`.
pub fn responses(bytes: &[u8], heads: &[bool]) -> Vec<Message> {
    let (mut responses, mut input) = (Responses::new(), BytesMut::from(bytes));
    let mut read = Vec::new();
    for &head in heads {
        if input.is_empty() {
            break;
        }
        let mut message = Message {
            from: bytes.len() - input.len(),
            ..Message::default()
        };
        responses.expect(head);
        loop {
            match responses.read(&mut input) {
                Ok(Some(Event::Head(head))) => message.what = head.parts.status.to_string(),
                Ok(Some(Event::Data(data))) => message.body.extend_from_slice(&data),
                Ok(Some(Event::Trailers(_))) => {}
                Ok(Some(Event::End)) => break,
                Ok(None) if responses.end().is_ok() => break,
                Ok(None) | Err(_) => return read,
            }
        }
        message.to = bytes.len() - input.len();
        read.push(message);
    }
    read
}
