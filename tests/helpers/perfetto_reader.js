// Perfetto's trace processor, as its user interface loads it in a web worker, without a browser. Reads requests from
// stdin and writes replies to stdout, both as a TraceProcessorRpcStream.
// usage: node perfetto_reader.js FOLDER_OF_ENGINE_BUNDLE
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

class FileRequest {
  open(method, url) {
    this.path = path.join(folder, path.basename(url));
  }

  send() {
    const bytes = fs.readFileSync(this.path);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

const worker = vm.createContext({
  console: { log: console.error, warn: console.error, error: console.error },
  location: { href: "file:///engine_bundle.js" },
  XMLHttpRequest: FileRequest,
  importScripts() {},
  TextDecoder,
  TextEncoder,
  URL,
  performance,
  setTimeout,
});
worker.self = worker;
worker.WorkerGlobalScope = worker;
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

const replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
worker.onmessage({ data: port });
setImmediate(() => {
  const WorkersArray = vm.runInContext("Uint8Array", worker); // it takes no other context's
  port.onmessage({ data: new WorkersArray(fs.readFileSync(0)) });
  fs.writeFileSync(1, Buffer.concat(replies));
});
