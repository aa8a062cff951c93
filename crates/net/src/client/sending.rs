//! A request's body as it goes out.

use bytes::Bytes;
use http_body::{Body, Frame};

use tollgate_http1::chunked;

use crate::buffer::WriteBuffer;

/// A request's body on its way.
#[derive(Debug)]
pub(super) struct Sending<B> {
    pub(super) body: B,
    /// What is left of its length; `None`: it goes in chunks.
    pub(super) left: Option<u64>,
}

impl<B: Body<Data = Bytes>> Sending<B> {
    /// Writes `frame`; whether it was the last.
    pub(super) fn take(&mut self, frame: Option<Frame<Bytes>>, out: &mut WriteBuffer) -> bool {
        let Some(frame) = frame else {
            if self.left.is_none() {
                chunked::write_end(out.flat(), None);
            }
            return true;
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                if self.left.is_none() && trailers.is_some() {
                    chunked::write_end(out.flat(), trailers.as_ref());
                }
                return trailers.is_some();
            }
        };
        match &mut self.left {
            Some(left) => {
                // Never more than was said: it would be the next request.
                let fits = usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()));
                *left -= fits as u64;
                let over = fits < data.len();
                if fits > 0 {
                    out.push(data.slice(..fits));
                }
                over || *left == 0
            }
            None => {
                if !data.is_empty() {
                    chunked::write_size(out.flat(), data.len());
                    out.push(data);
                    out.flat().extend_from_slice(chunked::CHUNK_END);
                }
                if self.body.is_end_stream() {
                    chunked::write_end(out.flat(), None);
                    return true;
                }
                false
            }
        }
    }
}
