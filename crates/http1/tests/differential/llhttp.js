// Has llhttp, Node.js's parser, read messages: each line of the input is `request HEX` or `response HEX HEADS`, where HEADS has
// a digit for each response, 1 if it is to a HEAD. Each line of the output tells the messages and the error.
const { HTTPParser } = process.binding('http_parser');

require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const [role, hex, heads] = line.split(' ');
  const messages = [];
  let body = [];
  let flushed = null;
  const parser = new HTTPParser();
  parser.initialize(role === 'request' ? HTTPParser.REQUEST : HTTPParser.RESPONSE, {});
  // Behind a message with trailers the target comes with the headers, before they are complete.
  parser[HTTPParser.kOnHeaders | 0] = (headers, url) => { flushed = url || flushed; };
  parser[HTTPParser.kOnHeadersComplete | 0] = (major, minor, headers, method, url, status) => {
    body = [];
    messages.push({ url: url ?? flushed, status: status ?? null, body: null });
    return role === 'response' && heads[messages.length - 1] === '1' ? 1 : 0;
  };
  parser[HTTPParser.kOnBody | 0] = (piece) => { body.push(Buffer.from(piece)); };
  parser[HTTPParser.kOnMessageComplete | 0] = () => {
    messages[messages.length - 1].body = Buffer.concat(body).toString('hex');
  };
  let result = parser.execute(Buffer.from(hex, 'hex'));
  if (!(result instanceof Error)) result = parser.finish();
  console.log(JSON.stringify({ messages, error: result instanceof Error ? result.code : null }));
});
