"""blobnet: train and run convolutional networks through OpenCL, on padded blobs."""
