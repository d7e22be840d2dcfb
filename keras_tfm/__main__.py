from keras_tfm.cli import main

main()
